// The fastest plain read: every lane sums 16 vec4 words, STEP apart (1: its own 256 bytes; else coalesced).
// word(i), words() and floats(word) come before this text.
override STEP: u32 = 1;

@group(0) @binding(1) var<storage, read_write> sums: array<f32>;

@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let first = (group.y * groups.x + group.x) * 1024;
    if first >= words() {
        return;
    }
    let at = first + select(lane, lane * 16, STEP == 1);
    var a = vec4<f32>();
    var b = vec4<f32>();
    a += floats(word(at));
    b += floats(word(at + STEP));
    a += floats(word(at + 2 * STEP));
    b += floats(word(at + 3 * STEP));
    a += floats(word(at + 4 * STEP));
    b += floats(word(at + 5 * STEP));
    a += floats(word(at + 6 * STEP));
    b += floats(word(at + 7 * STEP));
    a += floats(word(at + 8 * STEP));
    b += floats(word(at + 9 * STEP));
    a += floats(word(at + 10 * STEP));
    b += floats(word(at + 11 * STEP));
    a += floats(word(at + 12 * STEP));
    b += floats(word(at + 13 * STEP));
    a += floats(word(at + 14 * STEP));
    b += floats(word(at + 15 * STEP));
    sums[first / 16 + lane] = dot(a + b, vec4<f32>(1));
}
