// Queries as the buffer has them, rotated before if they are to be.
@group(0) @binding(0) var<storage, read> q: array<vec4<f32>>;

fn query4(at: u32) -> vec4<f32> {
    return q[at];
}
