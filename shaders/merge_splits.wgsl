// out = acc / sum over all splits, lse = m + log2(sum); see merge_parts.
//   scratch: as there, only the sequence's splits.
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
#import merge

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
    let found = merged(record, grid.x * grid.y, count, lane);
    out[record * (V_DIM / 4u) + lane] = select(vec4<f32>(), found.acc / found.sum, found.sum > 0.0);
    store_lse(record, lane, found.m, found.sum);
}
