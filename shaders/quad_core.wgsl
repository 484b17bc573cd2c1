// Attention with quad operations, in place of attend_core; HEAD_DIM and V_DIM: multiples of 32, at most 256.
//   score = q k^T * SM_SCALE, softcapped; p = 2^(score * log2 e - m); acc = acc * 2^(m_old - m) + p v
// A quad (4 lanes in a row) takes 4 neighbouring slots at a time for all ROWS.  Its lane j has dims 8 j to
// 8 j + 7 of each 32: its share of the queries, kept in registers, of every dot product, and of the sums
// of p v.  In between, lane j has slot j.  Nothing is shared before `finish`.
// Indices of private arrays are constants once functions are inlined, so the arrays become registers.
const TILE: i32 = 256;
const LOWEST: f32 = -3e38;  // finite: differences of it are never NaN
const NO_RECORD: u32 = 0xffffffffu;
const LOG2_E: f32 = 1.4426950408889634;
override LANES: u32 = 32;
override ROWS: u32 = 8;
override HEAD_DIM: u32;
override V_DIM: u32;
override SM_SCALE: f32 = 1.0;
override SOFTCAP: f32 = 0.0;
override UNROLLED: bool = false;  // 5 % faster, and twice as long to compile
override STREAMS: u32 = LANES / 4u;

@group(0) @binding(0) var<storage, read> q: array<vec4<f32>>;

var<workgroup> part: array<vec4<f32>, 512>;    // of one row: [stream][V_DIM / 4]
var<workgroup> state: array<vec2<f32>, 8>;     // of one row: [stream] m, in units of log2, and the sum of p
var<private> record: array<u32, 12>;           // (row, query head) number to store a row at, or NO_RECORD
var<private> query: array<u32, 12>;            // where a row's query starts, in vec4
var<private> first_key: array<i32, 12>;        // a row sees keys first_key .. end_key - 1
var<private> end_key: array<i32, 12>;
var<private> held: array<mat2x4<f32>, 96>;    // queries: [row][block of 32 dims], this lane's 8 of them
var<private> sum: array<f32, 12>;              // this lane's share of one slot's score
var<private> score: array<vec4<f32>, 12>;      // this lane's share of the scores of 4 slots; then 4 weights
var<private> p: array<f32, 12>;                // of this lane's slot
var<private> m: array<f32, 12>;
var<private> fade: array<f32, 12>;             // 2^(m_old - m)
var<private> total: array<f32, 12>;            // sum of p
var<private> acc: array<mat2x4<f32>, 96>;     // [row][block]

fn exp2_0(x: f32) -> f32 {
    return select(exp2(x), 1.0, x == 0.0);  // exactly 1, or a tile a row does not see would change it
}

// Blocks are whole here.
fn zero_tail(x: mat2x4<f32>, d: u32) -> mat2x4<f32> {
    return x;
}

fn dot8(a: mat2x4<f32>, b: mat2x4<f32>, sum: f32) -> f32 {
    let low = fma(a[0].w, b[0].w, fma(a[0].z, b[0].z, fma(a[0].y, b[0].y, fma(a[0].x, b[0].x, sum))));
    return fma(a[1].w, b[1].w, fma(a[1].z, b[1].z, fma(a[1].y, b[1].y, fma(a[1].x, b[1].x, low))));
}

fn dot_row(row: u32, block: u32, k: mat2x4<f32>) {
    if (row < ROWS) {
        sum[row] = dot8(held[row * 8u + block], k, sum[row]);
    }
}

fn push_row(row: u32) {
    if (row < ROWS) {
        score[row] = vec4<f32>(score[row].yzw, sum[row]);
        sum[row] = 0.0;
    }
}

fn scaled(x: f32, factor: f32) -> f32 {
    let s = x * factor * SM_SCALE;
    if (SOFTCAP > 0.0) {
        return SOFTCAP * LOG2_E * tanh(clamp(s / SOFTCAP, -15.0, 15.0));  // tanh of more may overflow
    }
    return s * LOG2_E;
}

// Lane j of a quad gets the sum of the quad's shares of slot j.
fn gathered(x: vec4<f32>, lane: u32) -> f32 {
    let odd = lane % 2u == 1u;
    let pair = select(x.xz, x.yw, odd) + quadSwapX(select(x.yw, x.xz, odd));
    let high = lane % 4u >= 2u;
    return select(pair.x, pair.y, high) + quadSwapY(select(pair.y, pair.x, high));
}

fn quad_max(x: f32) -> f32 {
    let pair = max(x, quadSwapX(x));
    return max(pair, quadSwapY(pair));
}

fn weigh_row(row: u32, lane: u32, key: i32, key_scale: f32, value_scale: f32) {
    if (row < ROWS) {
        let seen = sees(row, vec4<i32>(key)).x;
        let s = select(LOWEST, scaled(gathered(score[row], lane), key_scale), seen);
        let old = m[row];
        m[row] = max(old, quad_max(s));
        fade[row] = exp2_0(old - m[row]);
        let weight = select(0.0, exp2(s - m[row]), seen);
        total[row] = fma(total[row], fade[row], weight);
        p[row] = select(0.0, weight * value_scale, seen);
    }
}

fn add4(p: vec4<f32>, a: vec4<f32>, b: vec4<f32>, c: vec4<f32>, d: vec4<f32>, sum: vec4<f32>) -> vec4<f32> {
    return fma(p.wwww, d, fma(p.zzzz, c, fma(p.yyyy, b, fma(p.xxxx, a, sum))));
}

fn add_row(row: u32, block: u32, a: mat2x4<f32>, b: mat2x4<f32>, c: mat2x4<f32>, d: mat2x4<f32>) {
    if (row < ROWS) {
        let x = acc[row * 8u + block] * fade[row];
        let w = score[row];
        let low = add4(w, a[0], b[0], c[0], d[0], x[0]);
        acc[row * 8u + block] = mat2x4<f32>(low, add4(w, a[1], b[1], c[1], d[1], x[1]));
    }
}

// Every lane of a quad gets all four weights.
fn spread_row(row: u32) {
    if (row < ROWS) {
        let w = p[row];
        let second = vec2<f32>(quadBroadcast(w, 2u), quadBroadcast(w, 3u));
        score[row] = vec4<f32>(quadBroadcast(w, 0u), quadBroadcast(w, 1u), second);
    }
}
