// What both attention kernels share: one tile of TILE key slots for ROWS query rows of one KV head.
//   score = q k^T * SM_SCALE, softcapped; p = 2^(score * log2 e - m); acc = acc * 2^(m_old - m) + p v
// A lane scores 8 neighbouring slots for every row; then it owns 8 dims of v in every STREAMS-th 4 slots.
// Indices of private arrays are constants once functions are inlined, so the arrays become registers.
const TILE: i32 = 256;
const SCORERS: u32 = 32;  // TILE / 8 lanes
const LOWEST: f32 = -3e38;  // finite: differences of it are never NaN
const NO_RECORD: u32 = 0xffffffffu;
const LOG2_E: f32 = 1.4426950408889634;
override LANES: u32 = 32;
override ROWS: u32 = 8;
override HEAD_DIM: u32;
override V_DIM: u32;
override SM_SCALE: f32 = 1.0;
override SOFTCAP: f32 = 0.0;
override CHUNKS: u32 = (V_DIM + 7u) / 8u;
override STREAMS: u32 = max(LANES / CHUNKS, 1u);
const TEAMS = 1u;  // as quad_core has

var<workgroup> weight: array<vec4<f32>, 512>;  // [row][quad of slots]: scores, then weights; see share_row
var<workgroup> partial: array<f32, 256>;       // [row][scorer] largest score of a tile
var<workgroup> total: array<f32, 256>;         // [row][scorer] sum of p
var<workgroup> state: array<vec2<f32>, 8>;     // each row's m, in units of log2, and 2^(m_old - m)
var<workgroup> query: array<u32, 8>;           // where a row's query starts, in vec4
var<workgroup> record: array<u32, 8>;          // (row, query head) number to store a row at, or NO_RECORD
var<workgroup> first_key: array<i32, 8>;       // a row sees keys first_key .. end_key - 1
var<workgroup> end_key: array<i32, 8>;
var<workgroup> mine: array<i32, 8>;            // see attend_mask_tree
var<private> score: array<vec4<f32>, 16>;      // [row][2]: slots 0-3 and 4-7 of this lane
var<private> acc: array<mat2x4<f32>, 8>;

// Workgroup memory that is free until the walk begins.
fn lend(at: u32, x: vec4<f32>) {
    weight[at] = x;
}

fn lent(at: u32) -> vec4<f32> {
    return weight[at];
}

fn team(lane: u32) -> u32 {
    return 0u;
}

// A head of 4 more dims than a multiple of 8 ends in the middle of a block.
fn zero_tail(x: mat2x4<f32>, d: u32) -> mat2x4<f32> {
    if (HEAD_DIM % 8u != 0u && d + 8u > HEAD_DIM) {
        return mat2x4<f32>(x[0], vec4<f32>());
    }
    return x;
}

fn dot8(a: mat2x4<f32>, b: mat2x4<f32>, sum: f32) -> f32 {
    let low = fma(a[0].w, b[0].w, fma(a[0].z, b[0].z, fma(a[0].y, b[0].y, fma(a[0].x, b[0].x, sum))));
    return fma(a[1].w, b[1].w, fma(a[1].z, b[1].z, fma(a[1].y, b[1].y, fma(a[1].x, b[1].x, low))));
}

fn dot8x4(a: mat2x4<f32>, b: array<mat2x4<f32>, 4>, sum: vec4<f32>) -> vec4<f32> {
    return vec4<f32>(dot8(a, b[0], sum.x), dot8(a, b[1], sum.y), dot8(a, b[2], sum.z), dot8(a, b[3], sum.w));
}

fn score_row(row: u32, d: u32, low: array<mat2x4<f32>, 4>, high: array<mat2x4<f32>, 4>) {
    if (row < ROWS) {
        let at = query[row] + d / 4u;
        let query8 = zero_tail(mat2x4<f32>(query4(at), query4(at + 1u)), d);
        score[2u * row] = dot8x4(query8, low, score[2u * row]);
        score[2u * row + 1u] = dot8x4(query8, high, score[2u * row + 1u]);
    }
}

fn scaled(x: vec4<f32>, factor: vec4<f32>) -> vec4<f32> {
    let s = x * factor * SM_SCALE;
    if (SOFTCAP > 0.0) {
        let bent = clamp(s / SOFTCAP, vec4<f32>(-15.0), vec4<f32>(15.0));  // tanh of more may overflow
        return SOFTCAP * LOG2_E * tanh(bent);
    }
    return s * LOG2_E;
}

fn put_row(row: u32, lane: u32) {
    if (row < ROWS) {
        weight[row * 64u + 2u * lane] = score[2u * row];
        weight[row * 64u + 2u * lane + 1u] = score[2u * row + 1u];
    }
}

// What a row does with a lane's 8 slots is in loops over rows: a copy for each would compile for seconds.
fn mask_row(row: u32, lane: u32, low: vec4<i32>, high: vec4<i32>, scale: mat2x4<f32>) {
    let at = row * 64u + 2u * lane;
    let a = select(vec4<f32>(LOWEST), scaled(weight[at], scale[0]), sees(row, low));
    let b = select(vec4<f32>(LOWEST), scaled(weight[at + 1u], scale[1]), sees(row, high));
    weight[at] = a;
    weight[at + 1u] = b;
    let top = max(a, b);
    partial[row * SCORERS + lane] = max(max(top.x, top.y), max(top.z, top.w));
}

fn weigh_row(row: u32, lane: u32, scale: mat2x4<f32>) {
    let now = state[row];
    let at = row * 64u + 2u * lane;
    let s = weight[at];
    let t = weight[at + 1u];
    let zero = vec4<f32>();
    let a = select(zero, exp2(s - now.x), s > vec4<f32>(LOWEST));
    let b = select(zero, exp2(t - now.x), t > vec4<f32>(LOWEST));
    let sum = a + b;
    let own = row * SCORERS + lane;
    total[own] = fma(total[own], now.y, (sum.x + sum.y) + (sum.z + sum.w));
    weight[at] = select(zero, a * scale[0], s > vec4<f32>(LOWEST));
    weight[at + 1u] = select(zero, b * scale[1], t > vec4<f32>(LOWEST));
}

fn fade_row(row: u32) {
    if (row < ROWS) {
        acc[row] = acc[row] * state[row].y;
    }
}

fn add_row(row: u32, quad: u32, v: array<mat2x4<f32>, 4>) {
    if (row < ROWS) {
        let p = weight[row * 64u + quad];
        let x = acc[row];
        let a = fma(p.wwww, v[3][0], fma(p.zzzz, v[2][0], fma(p.yyyy, v[1][0], fma(p.xxxx, v[0][0], x[0]))));
        let b = fma(p.wwww, v[3][1], fma(p.zzzz, v[2][1], fma(p.yyyy, v[1][1], fma(p.xxxx, v[0][1], x[1]))));
        acc[row] = mat2x4<f32>(a, b);
    }
}
