// Attention with quad operations, in place of attend_core; HEAD_DIM, V_DIM: multiples of 8 SHARE, at most 256.
//   score = q k^T * SM_SCALE, softcapped; p = 2^(score * log2 e - m); acc = acc * 2^(m_old - m) + p v
// SHARE lanes in a row, a quad or two, take 4 neighbouring slots at a time for ROWS query rows.  Each has its
// share of the dims, in units of 8: of queries, kept in registers, of every dot product, and of sums of p v.
// In between, lane j of a quad has slot j.
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
var<private> first_key: array<i32, 12>;       // a row sees keys first_key .. end_key - 1
var<private> end_key: array<i32, 12>;
var<private> mine: array<i32, 12>;            // see attend_mask_tree
var<private> held: array<mat2x4<f32>, 96>;   // queries: [row][unit]
var<private> sum: array<f32, 12>;             // this lane's share of one slot's score
var<private> p: array<f32, 12>;               // of this lane's slot: its score, then its weight
var<private> weight: array<vec4<f32>, 12>;    // of 4 slots
var<private> m: array<f32, 12>;               // in units of log2
var<private> fade: array<f32, 12>;            // 2^(m_old - m)
var<private> total: array<f32, 12>;           // sum of p
var<private> acc: array<mat2x4<f32>, 96>;    // [row][unit]

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

fn dot_row(row: u32, pair: u32, k: array<mat2x4<f32>, 2>) {
    if (row < ROWS) {
        let unit = row * 8u + 2u * pair;
        sum[row] = dot8(held[unit], k[0], sum[row]);
        if ((2u * pair + 1u) * 8u * SHARE < HEAD_DIM) {
            sum[row] = dot8(held[unit + 1u], k[1], sum[row]);
        }
    }
}

// The lane whose slot it is keeps the score that the quad's lanes have shares of.
fn take_row(row: u32, here: bool) {
    if (row < ROWS) {
        let pair = sum[row] + quadSwapX(sum[row]);
        p[row] = select(p[row], all_of(pair + quadSwapY(pair)), here);
    }
}

fn scaled(x: f32, factor: f32) -> f32 {
    let s = x * factor * SM_SCALE;
    if (SOFTCAP > 0.0) {
        return SOFTCAP * LOG2_E * tanh(clamp(s / SOFTCAP, -15.0, 15.0));  // tanh of more may overflow
    }
    return s * LOG2_E;
}

// From this lane's score to its weight, and the quad's four weights.
fn weigh_row(row: u32, key: i32, key_scale: f32, value_scale: f32) {
    if (row < ROWS) {
        let seen = sees(row, vec4<i32>(key)).x;
        let s = select(LOWEST, scaled(p[row], key_scale), seen);
        let two = max(s, quadSwapX(s));
        let old = m[row];
        m[row] = max(old, max(two, quadSwapY(two)));
        fade[row] = exp2_0(old - m[row]);
        let x = select(0.0, exp2(s - m[row]), seen);
        total[row] = fma(total[row], fade[row], x);
        let w = select(0.0, x * value_scale, seen);
        let second = vec2<f32>(quadBroadcast(w, 2u), quadBroadcast(w, 3u));
        weight[row] = vec4<f32>(quadBroadcast(w, 0u), quadBroadcast(w, 1u), second);
    }
}

fn add4(w: vec4<f32>, v: array<vec4<f32>, 4>, sum: vec4<f32>) -> vec4<f32> {
    return fma(w.wwww, v[3], fma(w.zzzz, v[2], fma(w.yyyy, v[1], fma(w.xxxx, v[0], sum))));
}

fn add_row(row: u32, unit: u32, low: array<vec4<f32>, 4>, high: array<vec4<f32>, 4>) {
    if (row < ROWS) {
        let x = acc[row * 8u + unit] * fade[row];
        acc[row * 8u + unit] = mat2x4<f32>(add4(weight[row], low, x[0]), add4(weight[row], high, x[1]));
    }
}

// The row's sums move up by 4 dims.
fn next_half(row: u32) {
    if (row < ROWS) {
        let at = row * 8u;
        acc[at] = mat2x4<f32>(acc[at][1], acc[at + 1u][0]);
        acc[at + 1u] = mat2x4<f32>(acc[at + 1u][1], acc[at + 2u][0]);
        acc[at + 2u] = mat2x4<f32>(acc[at + 2u][1], acc[at + 3u][0]);
        acc[at + 3u] = mat2x4<f32>(acc[at + 3u][1], acc[at + 4u][0]);
        acc[at + 4u] = mat2x4<f32>(acc[at + 4u][1], acc[at + 5u][0]);
        acc[at + 5u] = mat2x4<f32>(acc[at + 5u][1], acc[at + 6u][0]);
        acc[at + 6u] = mat2x4<f32>(acc[at + 6u][1], acc[at + 7u][0]);
        acc[at + 7u] = mat2x4<f32>(acc[at + 7u][1], vec4<f32>());
    }
}

struct Sums {
    half: vec4<f32>,
    state: vec2<f32>,  // m and this lane's share of the sum of p
}

fn pick(sums: Sums, number: u32, row: u32) -> Sums {
    if (row >= ROWS) {
        return sums;
    }
    let here = number == row;
    let state = select(sums.state, vec2<f32>(m[row], total[row]), here);
    return Sums(select(sums.half, acc[row * 8u][0], here), state);
}
