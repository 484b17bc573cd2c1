// The rows whose norm is wanted, [rows][K] f32 in at most 64 KiB.
@group(0) @binding(3) var<uniform> side: array<vec4<f32>, 4096>;
