// As many tokens as the step has rows: step = (n, ...).
@group(0) @binding(3) var<uniform> step: vec4<u32>;

fn tokens() -> u32 {
    return step.x;
}
