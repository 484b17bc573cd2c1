// The next norm's weight, [columns of y] f32.
@group(0) @binding(3) var<storage, read> side: array<f32>;
