// The lanes of a quad share dims and slots, four at a time.
const SHARE = 4u;
alias Values = array<vec4<f32>, SHARE>;  // the same 4 dims of each slot

fn sum_of(x: f32) -> f32 {
    return quad_sum(x);
}

fn largest_of(x: f32) -> f32 {
    return quad_largest(x);
}

fn every_lane(x: u32) -> array<u32, SHARE> {
    return array<u32, SHARE>(quadBroadcast(x, 0u), quadBroadcast(x, 1u), quadBroadcast(x, 2u), quadBroadcast(x, 3u));
}

fn load_values(at: array<u32, SHARE>, d: u32, e: u32) -> array<Values, 4> {
    let x = load_units(at[0], d, e);
    let y = load_units(at[1], d, e);
    let z = load_units(at[2], d, e);
    let w = load_units(at[3], d, e);
    return array<Values, 4>(
        Values(x[0][0], y[0][0], z[0][0], w[0][0]), Values(x[0][1], y[0][1], z[0][1], w[0][1]),
        Values(x[1][0], y[1][0], z[1][0], w[1][0]), Values(x[1][1], y[1][1], z[1][1], w[1][1]),
    );
}

fn add_values(weight: array<u32, SHARE>, v: Values, sum: vec4<f32>) -> vec4<f32> {
    let two = fma(number(weight[1]), v[1], fma(number(weight[0]), v[0], sum));
    return fma(number(weight[3]), v[3], fma(number(weight[2]), v[2], two));
}
