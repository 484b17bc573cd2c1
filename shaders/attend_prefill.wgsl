// out = softmax(mask(q k^T * SM_SCALE)) v for ragged query rows over pages, tile after tile (FlashAttention).
//   q[n][Q_STRIDE] f32; pages: the import at `page`, through page_table; out: the import at `store`.
//   Row r of a sequence sees the keys that the import at `mask` says.
// One workgroup = ROWS neighbouring (row, head in group) pairs of one KV head, and every tile they see.
// Grid: (ceil(longest rows * GROUP / ROWS), KV_HEADS, sequences).
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

// What `row_of` needs; no control flow, as a private variable counts as different in each lane.
struct Span {
    row0: u32,     // the sequence's first row
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
    let record = select(NO_RECORD, n * KV_HEADS * GROUP + head, pair < span.rows * GROUP);
    return Row((n * Q_STRIDE + head * HEAD_DIM) / 4u, record, seen.x, seen.y, seen.z);
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
    begin_mask(group.z, grid.z, keys.length);
    span = Span(row0, rows, pair + team(lane) * ROWS, group.y, keys.length);
    let first = seen_by(pair / GROUP, rows, keys.length).x;
    let last_row = min((pair + ROWS * TEAMS - 1u) / GROUP, rows - 1u);
    let end = all_end(seen_by(last_row, rows, keys.length).y, keys.length);
    let count = rows_of(grid.x);
    begin(lane, count);
    if (end > first) {
        let low = slot_of_key(keys, first);
        let high = slot_of_key(keys, end - 1) + 1;
        let last = (keys.start + high - 1) / TILE;
        for (var tile = (keys.start + low) / TILE; tile <= last; tile++) {
            attend_tile(keys, group.y, tile * TILE - keys.start, low, high, lane, count);
        }
    }
    finish(lane, count);
}
