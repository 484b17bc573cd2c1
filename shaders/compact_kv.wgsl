// Tokens moved one after the other within each sequence (what is left of a token tree, packed together).
//   pages: u32 words; move_indptr[sequences + 1]; moves[...][2] int32: (src, dst), page * PAGE_TOKENS + slot.
// One lane = one word of every token of one sequence, so that its moves keep their order without a barrier.
// Grid: (ceil(words of a token / LANES), sequences).
#import page_strides
#import page_words
@group(0) @binding(0) var<storage, read_write> pages: array<u32>;
@group(0) @binding(1) var<storage, read> moves: array<i32>;
@group(0) @binding(2) var<storage, read> move_indptr: array<i32>;
override PAGE_WORDS: u32;
override LANES: u32 = 32;

@compute @workgroup_size(LANES)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    if (id.x >= token_words()) {
        return;
    }
    let held = arrayLength(&pages) / PAGE_WORDS * PAGE_TOKENS;
    for (var i = move_indptr[id.y]; i < move_indptr[id.y + 1u]; i++) {
        let src = u32(moves[2 * i]);
        let dst = u32(moves[2 * i + 1]);
        if (src < held && dst < held) {
            pages[token_word(at_position(dst), id.x)] = pages[token_word(at_position(src), id.x)];
        }
    }
}
