// Causal (or all) keys, within the window: a range.
fn begin_mask(sequence: u32, sequences: u32, length: i32) {}

fn row_sees(r: u32, rows: u32, range: vec2<i32>) -> vec3<i32> {
    return vec3<i32>(range, 0);
}

fn all_end(end: i32, length: i32) -> i32 {
    return end;
}

fn sees(row: u32, key: vec4<i32>) -> vec4<bool> {
    return (key >= vec4<i32>(first_key[row])) & (key < vec4<i32>(end_key[row]));
}
