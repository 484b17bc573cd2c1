// out = softmax(mask(q k^T * SM_SCALE)) v for ragged query rows over pages, tile after tile (FlashAttention).
//   q[n][Q_STRIDE] f32; pages: the import at `page`, through page_table; out: the import at `store`.
//   Row r of a sequence sees the keys that the import at `mask` says.
// One workgroup = ROWS neighbouring (row, head in group) pairs of one KV head, and every tile they see.
// Grid: (ceil(longest rows * GROUP / ROWS), KV_HEADS, sequences).
#import page
#import page_table
#import page_strides
#import page_place
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

// Keys that query row `r` sees: first .. end - 1.
fn seen_by(r: u32, rows: u32, length: i32) -> vec2<i32> {
    let end = select(length, clamp(length - i32(rows - 1u - r), 0, length), CAUSAL);
    return vec2<i32>(select(0, max(end - WINDOW, 0), CAUSAL && WINDOW > 0), end);
}

fn set_row(row: u32, pair: u32, rows: u32, row0: u32, kv_head: u32, length: i32) {
    let r = min(pair / GROUP, rows - 1u);
    let head = kv_head * GROUP + pair % GROUP;
    let seen = row_sees(row, r, rows, seen_by(r, rows, length), length);
    query[row] = ((row0 + r) * Q_STRIDE + head * HEAD_DIM) / 4u;
    record[row] = select(NO_RECORD, (row0 + r) * KV_HEADS * GROUP + head, row < ROWS && pair < rows * GROUP);
    first_key[row] = seen.x;
    end_key[row] = seen.y;
}

@compute @workgroup_size(LANES)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let row0 = u32(qo_indptr[group.z]);
    let rows = u32(qo_indptr[group.z + 1u]) - row0;
    let pair = group.x * ROWS;
    if (pair >= rows * GROUP) {
        return;
    }
    let keys = keys_of(group.z, grid.z);
    begin_mask(group.z, grid.z, keys.length);
    set_row(0u, pair, rows, row0, group.y, keys.length);
    set_row(1u, pair + 1u, rows, row0, group.y, keys.length);
    set_row(2u, pair + 2u, rows, row0, group.y, keys.length);
    set_row(3u, pair + 3u, rows, row0, group.y, keys.length);
    set_row(4u, pair + 4u, rows, row0, group.y, keys.length);
    set_row(5u, pair + 5u, rows, row0, group.y, keys.length);
    set_row(6u, pair + 6u, rows, row0, group.y, keys.length);
    set_row(7u, pair + 7u, rows, row0, group.y, keys.length);
    if (ROWS > 8u) {
        set_row(8u, pair + 8u, rows, row0, group.y, keys.length);
        set_row(9u, pair + 9u, rows, row0, group.y, keys.length);
        set_row(10u, pair + 10u, rows, row0, group.y, keys.length);
        set_row(11u, pair + 11u, rows, row0, group.y, keys.length);
    }
    let first = seen_by(pair / GROUP, rows, keys.length).x;
    let end = all_end(seen_by(min((pair + ROWS - 1u) / GROUP, rows - 1u), rows, keys.length).y, keys.length);
    begin(lane);
    if (end > first) {
        let low = slot_of_key(keys, first);
        let high = slot_of_key(keys, end - 1) + 1;
        let last = (keys.start + high - 1) / TILE;
        for (var tile = (keys.start + low) / TILE; tile <= last; tile++) {
            attend_tile(keys, group.y, tile * TILE - keys.start, low, high, lane);
        }
    }
    finish(lane);
}
