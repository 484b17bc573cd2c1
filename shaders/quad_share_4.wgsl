// The lanes of a quad share a slot's dims.
const SHARE = 4u;

fn all_of(quad: f32) -> f32 {
    return quad;
}
