// out = (2^(lse - s) out + 2^(other_lse - s) other_out) / (2^(lse - s) + 2^(other_lse - s)), s = max of both;
// lse = s + log2 of that denominator; in place.
//   out, other_out[rows][V_DIM] f32; lse, other_lse[rows] f32, base 2.
// One workgroup = one row (head, token); lane d has dims 4d .. 4d + 3.
@group(0) @binding(0) var<storage, read_write> out: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read_write> lse: array<f32>;
@group(0) @binding(2) var<storage, read> other_out: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read> other_lse: array<f32>;
override V_DIM: u32;
override LANES: u32 = V_DIM / 4u;

@compute @workgroup_size(LANES)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let row = group.y * grid.x + group.x;
    let a = lse[row];
    let b = other_lse[row];
    let s = max(a, b);
    let w = exp2(a - s);
    let v = exp2(b - s);
    let at = row * LANES + lane;
    out[at] = fma(out[at], vec4<f32>(w), other_out[at] * v) / (w + v);
    workgroupBarrier();  // every lane has read lse
    if (lane == 0u) {
        lse[row] = s + log2(w + v);
    }
}
