// Fused multiply-adds in registers: four independent vec4 chains, 16 steps of each per turn of the loop.
override TURNS: u32 = 64;

@group(0) @binding(0) var<storage, read_write> out: array<vec4<f32>>;

fn four(x: vec4<f32>, m: vec4<f32>, c: vec4<f32>) -> vec4<f32> {
    return fma(fma(fma(fma(x, m, c), m, c), m, c), m, c);
}

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let m = vec4<f32>(f32(id.x) * 1e-9 + 0.5);
    let c = m + 0.25;
    var w = m;
    var x = c;
    var y = m + c;
    var z = m - c;
    for (var i = 0u; i < TURNS; i++) {
        w = four(four(four(four(w, m, c), m, c), m, c), m, c);
        x = four(four(four(four(x, m, c), m, c), m, c), m, c);
        y = four(four(four(four(y, m, c), m, c), m, c), m, c);
        z = four(four(four(four(z, m, c), m, c), m, c), m, c);
    }
    out[id.x] = w + x + y + z;
}
