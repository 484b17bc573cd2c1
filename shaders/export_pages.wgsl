// Pages gathered into `data`, slots from `valid` on and gaps of the layout 0.
//   pages: u32 words; exports[count][2] int32: (page, valid slots); data[count][PAGE_WORDS].
// One lane = one word; grid: (ceil(PAGE_WORDS / LANES), count).
#import page_strides
#import page_words
@group(0) @binding(0) var<storage, read> pages: array<u32>;
@group(0) @binding(1) var<storage, read> exports: array<i32>;
@group(0) @binding(2) var<storage, read_write> data: array<u32>;
override PAGE_WORDS: u32;
override LANES: u32 = 32;

@compute @workgroup_size(LANES)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let page = min(u32(exports[2u * id.y]), arrayLength(&pages) / PAGE_WORDS - 1u);
    let valid = u32(max(exports[2u * id.y + 1u], 0));
    if (id.x < PAGE_WORDS) {
        let word = pages[page * PAGE_WORDS + id.x];
        data[id.y * PAGE_WORDS + id.x] = select(0u, word, slot_of_word(id.x) < valid);
    }
}
