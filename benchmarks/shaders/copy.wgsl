// Copies vec4 words; every lane 16 of them, STEP apart as in read.wgsl.
override STEP: u32 = 1;

@group(0) @binding(0) var<storage, read> src: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read_write> dst: array<vec4<u32>>;

@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let at = (group.y * groups.x + group.x) * 1024 + select(lane, lane * 16, STEP == 1);
    for (var i = 0u; i < 16; i++) {
        dst[at + i * STEP] = src[at + i * STEP];
    }
}
