// `store4` to words of f32.
fn store4(element: u32, x: vec4<f32>, scale: f32) {
    let w = bitcast<vec4<u32>>(x);
    pages[element] = w.x;
    pages[element + 1u] = w.y;
    pages[element + 2u] = w.z;
    pages[element + 3u] = w.w;
}
