// Two neighbouring quads share dims and slots, eight at a time.
const SHARE = 8u;
alias Values = array<vec4<f32>, SHARE>;  // the same 4 dims of each slot

fn sum_of(x: f32) -> f32 {
    let four = quad_sum(x);
    return four + subgroupShuffleXor(four, 4u);
}

fn largest_of(x: f32) -> f32 {
    let four = quad_largest(x);
    return larger(four, subgroupShuffleXor(four, 4u));
}

fn every_lane(x: u32) -> array<u32, SHARE> {
    return array<u32, SHARE>(
        subgroupBroadcast(x, 0u), subgroupBroadcast(x, 1u), subgroupBroadcast(x, 2u), subgroupBroadcast(x, 3u),
        subgroupBroadcast(x, 4u), subgroupBroadcast(x, 5u), subgroupBroadcast(x, 6u), subgroupBroadcast(x, 7u),
    );
}

fn load_values(at: array<u32, SHARE>, d: u32, e: u32) -> array<Values, 4> {
    let s0 = load_units(at[0], d, e);
    let s1 = load_units(at[1], d, e);
    let s2 = load_units(at[2], d, e);
    let s3 = load_units(at[3], d, e);
    let s4 = load_units(at[4], d, e);
    let s5 = load_units(at[5], d, e);
    let s6 = load_units(at[6], d, e);
    let s7 = load_units(at[7], d, e);
    return array<Values, 4>(
        Values(s0[0][0], s1[0][0], s2[0][0], s3[0][0], s4[0][0], s5[0][0], s6[0][0], s7[0][0]),
        Values(s0[0][1], s1[0][1], s2[0][1], s3[0][1], s4[0][1], s5[0][1], s6[0][1], s7[0][1]),
        Values(s0[1][0], s1[1][0], s2[1][0], s3[1][0], s4[1][0], s5[1][0], s6[1][0], s7[1][0]),
        Values(s0[1][1], s1[1][1], s2[1][1], s3[1][1], s4[1][1], s5[1][1], s6[1][1], s7[1][1]),
    );
}

fn add_values(weight: array<u32, SHARE>, v: Values, sum: vec4<f32>) -> vec4<f32> {
    let two = fma(number(weight[1]), v[1], fma(number(weight[0]), v[0], sum));
    let four = fma(number(weight[3]), v[3], fma(number(weight[2]), v[2], two));
    let six = fma(number(weight[5]), v[5], fma(number(weight[4]), v[4], four));
    return fma(number(weight[7]), v[7], fma(number(weight[6]), v[6], six));
}
