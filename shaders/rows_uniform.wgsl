// A window of 64 KiB, the default limit of a uniform binding: software adapters load it faster than storage.
@group(0) @binding(2) var<uniform> x: array<vec4<f32>, 4096>;
