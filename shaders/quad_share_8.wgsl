// The lanes of two neighbouring quads share a slot's dims, and both have the same 4 slots.
const SHARE = 8u;

fn all_of(quad: f32) -> f32 {
    return quad + subgroupShuffleXor(quad, 4u);
}
