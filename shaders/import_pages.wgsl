// Pages scattered from `data`: page imports[i] becomes data[i].
//   pages: u32 words; imports[count] int32; data[count][PAGE_WORDS].
// One lane = one word; grid: (ceil(PAGE_WORDS / LANES), count).
@group(0) @binding(0) var<storage, read_write> pages: array<u32>;
@group(0) @binding(1) var<storage, read> imports: array<i32>;
@group(0) @binding(2) var<storage, read> data: array<u32>;
override PAGE_WORDS: u32;
override LANES: u32 = 32;

@compute @workgroup_size(LANES)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let page = u32(imports[id.y]);
    if (id.x < PAGE_WORDS && page < arrayLength(&pages) / PAGE_WORDS) {
        pages[page * PAGE_WORDS + id.x] = data[id.y * PAGE_WORDS + id.x];
    }
}
