// The rows whose norm is wanted, [rows][K] f32, in a buffer.
@group(0) @binding(3) var<storage, read> side: array<vec4<f32>>;
