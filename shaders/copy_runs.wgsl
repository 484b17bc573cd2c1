// Runs of u32 words: dst[to ..] = src[start ..], for each (start, to, words) of runs[count][3].
// One lane = one word; grid: (ceil(longest run / LANES), count).
@group(0) @binding(0) var<storage, read> src: array<u32>;
@group(0) @binding(1) var<storage, read_write> dst: array<u32>;
@group(0) @binding(2) var<storage, read> runs: array<u32>;
override LANES: u32 = 32;

@compute @workgroup_size(LANES)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let start = runs[3u * id.y] + id.x;
    let to = runs[3u * id.y + 1u] + id.x;
    let words = runs[3u * id.y + 2u];
    if (id.x < words && start < arrayLength(&src) && to < arrayLength(&dst)) {
        dst[to] = src[start];
    }
}
