// out = softmax(q k^T * SM_SCALE) v for one query row per sequence, over pages (split-KV: Flash-Decoding).
//   q[sequences][Q_STRIDE] f32; pages: the import at `page`, through page_table; out: the import at `store`.
// One workgroup = one tile of keys of one KV head, for ROWS of its GROUP query heads.
// Grid: (tiles, KV_HEADS * ceil(GROUP / ROWS), sequences).
#import page
#import page_table
#import page_strides
#import page_place
#import attend_core
#import attend_tile
#import attend_walk
#import key
#import store

override GROUP: u32;
override KV_HEADS: u32;
override WINDOW: i32 = 0;
override Q_STRIDE: u32;
override SPLIT: i32;

fn sees(row: u32, key: vec4<i32>) -> vec4<bool> {
    return (key >= vec4<i32>(first_key[row])) & (key < vec4<i32>(end_key[row]));
}

// `head`: of the row, in its group; `head0`: the group's first.
fn set_row(row: u32, head: u32, head0: u32, at: vec2<u32>, seen: vec2<i32>) {
    query[row] = (at.x * Q_STRIDE + (head0 + min(head, GROUP - 1u)) * HEAD_DIM) / 4u;
    record[row] = select(NO_RECORD, at.y * KV_HEADS * GROUP + head0 + head, row < ROWS && head < GROUP);
    first_key[row] = seen.x;
    end_key[row] = seen.y;
}

@compute @workgroup_size(LANES)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let sequence = group.z;
    let parts = (GROUP + ROWS - 1u) / ROWS;
    let kv_head = group.y / parts;
    let keys = keys_of(sequence, grid.z);
    let first = select(0, max(keys.length - WINDOW, 0), WINDOW > 0);
    let low = slot_of_key(keys, first);
    let split = (keys.start + low) / SPLIT + i32(group.x);
    let begins = max(split * SPLIT - keys.start, low);
    let ends = min((split + 1) * SPLIT - keys.start, keys.slots);
    if (begins >= keys.slots && group.x > 0u) {
        return;
    }
    let head = (group.y % parts) * ROWS;
    let head0 = kv_head * GROUP;
    let at = vec2<u32>(sequence, group.x * grid.z + sequence);
    let seen = vec2<i32>(first, keys.length);
    set_row(0u, head, head0, at, seen);
    set_row(1u, head + 1u, head0, at, seen);
    set_row(2u, head + 2u, head0, at, seen);
    set_row(3u, head + 3u, head0, at, seen);
    set_row(4u, head + 4u, head0, at, seen);
    set_row(5u, head + 5u, head0, at, seen);
    set_row(6u, head + 6u, head0, at, seen);
    set_row(7u, head + 7u, head0, at, seen);
    if (ROWS > 8u) {
        set_row(8u, head + 8u, head0, at, seen);
        set_row(9u, head + 9u, head0, at, seen);
        set_row(10u, head + 10u, head0, at, seen);
        set_row(11u, head + 11u, head0, at, seen);
    }
    begin(lane);
    if (keys.length > 0) {
        let last = (keys.start + ends - 1) / TILE;
        for (var tile = (keys.start + begins) / TILE; tile <= last; tile++) {
            attend_tile(keys, kv_head, tile * TILE - keys.start, low, keys.slots, lane);
        }
    }
    finish(lane);
}
