// out = sum_t 2^(m_t - m) acc_t / sum, sum = sum_t 2^(m_t - m) l_t over tiles t; lse = m + log2(sum).
//   scratch[tile][sequence][head][1 + V_DIM / 4] vec4: (m, l, 0, 0), then acc; only the sequence's tiles.
//   out[sequence][head][V_DIM] f32; a sequence without keys gives 0.
// One workgroup = one (query head, sequence); lane d has dims 4d .. 4d + 3.
#import page_table

@group(0) @binding(0) var<storage, read> scratch: array<vec4<f32>>;
@group(0) @binding(5) var<storage, read_write> out: array<vec4<f32>>;
override PAGE_TOKENS: u32 = 16;
override V_DIM: u32;
override WINDOW: i32 = 0;
override LANES: u32 = V_DIM / 4u;
override SPLIT: i32;

#import lse

@compute @workgroup_size(LANES)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let keys = keys_of(group.y, grid.y);
    let low = slot_of_key(keys, select(0, max(keys.length - WINDOW, 0), WINDOW > 0));
    let tiles = (keys.start + keys.slots - 1) / SPLIT - (keys.start + low) / SPLIT + 1;
    let count = select(0u, u32(max(tiles, 0)), keys.length > 0);
    let record = group.y * grid.x + group.x;
    let next = grid.x * grid.y * (1u + V_DIM / 4u);
    let first = record * (1u + V_DIM / 4u);
    var m = -3e38;
    for (var t = 0u; t < count; t++) {
        m = max(m, scratch[first + t * next].x);
    }
    var acc = vec4<f32>();
    var sum = 0.0;
    for (var t = 0u; t < count; t++) {
        let at = first + t * next;
        let part = scratch[at];
        let w = select(exp2(part.x - m), 1.0, part.x == m);  // exactly 1 for a single tile
        sum = fma(w, part.y, sum);
        acc = fma(vec4<f32>(w), scratch[at + 1u + lane], acc);
    }
    out[record * (V_DIM / 4u) + lane] = select(vec4<f32>(), acc / sum, sum > 0.0);
    store_lse(record, lane, m, sum);
}
