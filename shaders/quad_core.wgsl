// Attention with quad operations, in place of attend_core; HEAD_DIM, V_DIM: multiples of 8 SHARE, at most 256.
//   score = q k^T * SM_SCALE, softcapped; p = 2^(score * log2 e - m); acc = acc * 2^(m_old - m) + p v
// SHARE lanes in a row, a quad or two, take as many neighbouring slots at a time for ROWS query rows.  Each has its
// share of the dims, in units of 8: of queries, kept in registers, of every dot product, and of sums of p v.
// In between, each has a slot of its own.
// Different teams have different rows and see all slots; the STREAMS of a team share the slots.
// Indices of private arrays are constants once functions are inlined, so the arrays become registers.
const TILE: i32 = 256;
const LOWEST: f32 = -3e38;  // finite: differences of it are never NaN
const NO_RECORD: u32 = 0xffffffffu;
const LOG2_E: f32 = 1.4426950408889634;
override LANES: u32 = 8;
override TEAMS: u32 = 1;
override ROWS: u32 = 8;
override HEAD_DIM: u32;
override V_DIM: u32;
override SM_SCALE: f32 = 1.0;
override SOFTCAP: f32 = 0.0;
override PAIRED: bool = false;  // a lane has 16 dims at a time instead of 8
override STREAMS: u32 = LANES / SHARE / TEAMS;
#import share

var<workgroup> part: array<vec4<f32>, 512>;  // at the end: [row][stream][V_DIM / 4]
var<private> first_key: array<i32, 16>;       // a row sees keys first_key .. end_key - 1
var<private> end_key: array<i32, 16>;
var<private> mine: array<i32, 16>;            // see attend_mask_tree
var<private> held: array<mat2x4<f32>, 128>;   // queries: [row][unit]
var<private> p: array<f32, 16>;               // a slot's score
var<private> weight: array<array<u32, SHARE>, 16>;  // every slot's, as bits
var<private> m: array<f32, 16>;               // in units of log2; whole
var<private> fade: array<f32, 16>;            // 2^(m_old - m)
var<private> total: array<f32, 16>;           // sum of p over this lane's slots
var<private> acc: array<mat2x4<f32>, 128>;    // [row][unit]

// Workgroup memory that is free until the walk ends.
fn lend(at: u32, x: vec4<f32>) {
    part[at] = x;
}

fn lent(at: u32) -> vec4<f32> {
    return part[at];
}

fn team(lane: u32) -> u32 {
    return lane / SHARE / STREAMS;
}

// The first of the 8 dims of a lane's unit.
fn dim_of(unit: u32, lane: u32) -> u32 {
    if (PAIRED) {
        return unit / 2u * 16u * SHARE + lane % SHARE * 16u + unit % 2u * 8u;
    }
    return unit * 8u * SHARE + lane % SHARE * 8u;
}

// Units are whole here.
fn zero_tail(x: mat2x4<f32>, d: u32) -> mat2x4<f32> {
    return x;
}

fn dot8(a: mat2x4<f32>, b: mat2x4<f32>, sum: f32) -> f32 {
    let low = fma(a[0].w, b[0].w, fma(a[0].z, b[0].z, fma(a[0].y, b[0].y, fma(a[0].x, b[0].x, sum))));
    return fma(a[1].w, b[1].w, fma(a[1].z, b[1].z, fma(a[1].y, b[1].y, fma(a[1].x, b[1].x, low))));
}

// A unit alone, where lanes have one at a time, may be half of what load16 has to load.
fn load_units(at: u32, d: u32, e: u32) -> array<mat2x4<f32>, 2> {
    if (PAIRED) {
        return load16(at + d, at + e);
    }
    return array<mat2x4<f32>, 2>(load8(at + d), load8(at + e));
}

fn key_units(element: u32, d: u32, e: u32, key: i32) -> array<mat2x4<f32>, 2> {
    if (PAIRED) {
        return key16(element, d, e, key);
    }
    return array<mat2x4<f32>, 2>(key8(element, d, key), key8(element, e, key));
}

// A slot's score goes round the lanes that share it, and each adds its part.
fn next_row(row: u32, source: u32) {
    if (row < ROWS) {
        p[row] = subgroupShuffle(p[row], source);
    }
}

fn dot_row(row: u32, pair: u32, k: array<mat2x4<f32>, 2>) {
    if (row < ROWS) {
        let unit = row * 8u + 2u * pair;
        p[row] = dot8(held[unit], k[0], p[row]);
        if ((2u * pair + 1u) * 8u * SHARE < HEAD_DIM) {
            p[row] = dot8(held[unit + 1u], k[1], p[row]);
        }
    }
}

fn scaled(x: f32, factor: f32) -> f32 {
    let s = x * factor * SM_SCALE;
    if (SOFTCAP > 0.0) {
        return SOFTCAP * LOG2_E * tanh(clamp(s / SOFTCAP, -15.0, 15.0));  // tanh of more may overflow
    }
    return s * LOG2_E;
}

// One instruction on a CPU; max is three, as of a NaN and a number it takes the number.
fn larger(a: f32, b: f32) -> f32 {
    return select(b, a, a > b);
}

fn quad_sum(x: f32) -> f32 {
    let two = x + quadSwapX(x);
    return two + quadSwapY(two);
}

fn quad_largest(x: f32) -> f32 {
    let two = larger(x, quadSwapX(x));
    return larger(two, quadSwapY(two));
}

// 2^x for whole x <= 0.
fn power_of_2(x: f32) -> f32 {
    return bitcast<f32>((i32(larger(x, -127.0)) + 127) << 23u);
}

// From this lane's score to all lanes' weights.  m is a whole number: to change it takes no exp2, and is exact.
fn weigh_row(row: u32, key: i32, key_scale: f32, value_scale: f32) {
    if (row < ROWS) {
        let seen = sees(row, vec4<i32>(key)).x;
        let s = select(LOWEST, scaled(p[row], key_scale), seen);
        let old = m[row];
        m[row] = larger(old, ceil(largest_of(s)));
        fade[row] = power_of_2(old - m[row]);
        let x = select(0.0, exp2(s - m[row]), seen);
        total[row] = fma(total[row], fade[row], x);
        weight[row] = every_lane(bitcast<u32>(select(0.0, x * value_scale, seen)));
    }
}

fn number(bits: u32) -> vec4<f32> {
    return vec4<f32>(bitcast<f32>(bits));
}

fn add_row(row: u32, unit: u32, low: Values, high: Values) {
    if (row < ROWS) {
        let x = acc[row * 8u + unit] * fade[row];
        acc[row * 8u + unit] = mat2x4<f32>(add_values(weight[row], low, x[0]), add_values(weight[row], high, x[1]));
    }
}
