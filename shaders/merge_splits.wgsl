// out = acc / sum over all splits, lse = m + log2(sum); see merge_parts.
//   scratch: as there, only the row's splits; a row is a sequence's in decode.
//   out[row][head][V_DIM] f32; a row without keys gives 0.
// One workgroup = one (query head, row); lane d has dims 4d .. 4d + 3.
@group(0) @binding(0) var<storage, read> scratch: array<vec4<f32>>;
@group(0) @binding(5) var<storage, read_write> out: array<vec4<f32>>;
override V_DIM: u32;
override LANES: u32 = V_DIM / 4u;

#import splits
#import lse
#import merge

@compute @workgroup_size(LANES)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let record = group.y * grid.x + group.x;
    let found = merged(record, grid.x * grid.y, splits_of(group.y, grid.y), lane);
    out[record * (V_DIM / 4u) + lane] = select(vec4<f32>(), found.acc / found.sum, found.sum > 0.0);
    store_lse(record, lane, found.m, found.sum);
}
