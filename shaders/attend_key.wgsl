// Keys as they are stored: rotated already, or not to be rotated.
fn key8(element: u32, d: u32, key: i32) -> mat2x4<f32> {
    return zero_tail(load8(element + d), d);
}

fn key16(element: u32, d: u32, e: u32, key: i32) -> array<mat2x4<f32>, 2> {
    return load16(element + d, element + e);
}
