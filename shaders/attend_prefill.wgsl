// out = softmax(mask(q k^T * SM_SCALE)) v for ragged query rows over pages, tile after tile (FlashAttention).
//   q[n][Q_STRIDE] f32; pages: the import at `page`, through page_table; out: the import at `store`.
//   Row r of a sequence sees the keys that the import at `mask` says.
// One workgroup = ROWS * TEAMS neighbouring (row, head in group) pairs of one KV head, and every tile they see of one
// part: of PART keys, at absolute multiples of it; the last has all that follow.  Record: (part, row, head).
// Grid: (ceil(longest rows * GROUP / ROWS / TEAMS), KV_HEADS * parts, sequences).
#import page
#import page_table
#import page_strides
#import page_place
#import attend_row
#import query
#import attend_core
#import attend_tile
#import attend_walk
#import key
#import mask
#import store

@group(0) @binding(6) var<storage, read> qo_indptr: array<i32>;
override GROUP: u32;
override KV_HEADS: u32;
override WINDOW: i32 = 0;
override Q_STRIDE: u32;
override CAUSAL: bool = true;
override PART: i32;  // a multiple of TILE

// What `row_of` needs; no control flow, as a private variable counts as different in each lane.
struct Span {
    row0: u32,     // the sequence's first row
    out0: u32,     // the part's, among all records' rows
    rows: u32,
    pair0: u32,    // the team's first (row, head in group) pair
    kv_head: u32,
    length: i32,
}
var<private> span: Span;

// Keys that row `r` of `rows` sees: first .. end - 1.
fn seen_by(r: u32, rows: u32, length: i32) -> vec2<i32> {
    let end = select(length, clamp(length - i32(rows - 1u - r), 0, length), CAUSAL);
    return vec2<i32>(select(0, max(end - WINDOW, 0), CAUSAL && WINDOW > 0), end);
}

fn row_of(row: u32) -> Row {
    let pair = span.pair0 + row;
    let r = min(pair / GROUP, span.rows - 1u);
    let head = span.kv_head * GROUP + pair % GROUP;
    let n = span.row0 + r;
    let seen = row_sees(r, span.rows, seen_by(r, span.rows, span.length));
    let record = select(NO_RECORD, (span.out0 + n) * KV_HEADS * GROUP + head, pair < span.rows * GROUP);
    return Row((n * Q_STRIDE + head * HEAD_DIM) / 4u, record, seen.x, seen.y, seen.z);
}

// The tiles of slots low .. high - 1 that are a part's: first, and after the last.
fn tiles_of(keys: Keys, low: i32, high: i32, part: i32, last: bool) -> vec2<i32> {
    let begins = (keys.start / PART + part) * (PART / TILE);
    let after = (keys.start + high - 1) / TILE + 1;
    return vec2<i32>(max((keys.start + low) / TILE, begins), select(min(after, begins + PART / TILE), after, last));
}

@compute @workgroup_size(LANES)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let row0 = u32(qo_indptr[group.z]);
    let rows = u32(qo_indptr[group.z + 1u]) - row0;
    let pair = group.x * ROWS * TEAMS;
    if (pair >= rows * GROUP) {
        return;
    }
    let keys = keys_of(group.z, grid.z);
    let kv_head = group.y % KV_HEADS;
    let part = group.y / KV_HEADS;
    begin_mask(group.z, grid.z, keys.length);
    let out0 = part * u32(qo_indptr[grid.z]);
    span = Span(row0, out0, rows, pair + team(lane) * ROWS, kv_head, keys.length);
    let first = seen_by(pair / GROUP, rows, keys.length).x;
    let last_row = min((pair + ROWS * TEAMS - 1u) / GROUP, rows - 1u);
    let end = all_end(seen_by(last_row, rows, keys.length).y, keys.length);
    let count = rows_of(grid.x);
    begin(lane, count);
    if (end > first) {
        let low = slot_of_key(keys, first);
        let high = slot_of_key(keys, end - 1) + 1;
        let tiles = tiles_of(keys, low, high, i32(part), (part + 1u) * KV_HEADS == grid.y);
        for (var tile = tiles.x; tile < tiles.y; tile++) {
            attend_tile(keys, kv_head, tile * TILE - keys.start, low, high, lane, count);
        }
    }
    finish(lane, count);
}
