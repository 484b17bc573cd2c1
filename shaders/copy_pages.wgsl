// The first `valid` slots of page src to page dst, for each (src, dst, valid).
//   pages: u32 words; copies[count][3] int32.  A dst is no other copy's src or dst.
// One lane = one word; grid: (ceil(PAGE_WORDS / LANES), count).
#import page_strides
#import page_words
@group(0) @binding(0) var<storage, read_write> pages: array<u32>;
@group(0) @binding(1) var<storage, read> copies: array<i32>;
override PAGE_WORDS: u32;
override LANES: u32 = 32;

@compute @workgroup_size(LANES)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let src = u32(copies[3u * id.y]);
    let dst = u32(copies[3u * id.y + 1u]);
    let valid = u32(max(copies[3u * id.y + 2u], 0));
    let held = arrayLength(&pages) / PAGE_WORDS;
    if (id.x < PAGE_WORDS && slot_of_word(id.x) < valid && src < held && dst < held) {
        pages[dst * PAGE_WORDS + id.x] = pages[src * PAGE_WORDS + id.x];
    }
}
