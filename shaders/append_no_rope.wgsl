// No rotation.
fn turn_query(at: u32, token: u32) {}

fn key4(at: u32, token: u32, d: u32) -> vec4<f32> {
    return value4(at + d);
}
