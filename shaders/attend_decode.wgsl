// out = softmax(q k^T * SM_SCALE) v for one query row per sequence, over pages (split-KV: Flash-Decoding).
//   q[sequences][Q_STRIDE] f32; pages: the import at `page`, through page_table; out: the import at `store`.
//   The last tokens are in their pages, or the import at `append` writes them.
// One workgroup = one part of the slots of one KV head, for ROWS of its GROUP query heads; `part` says which.
// Grid: (KV_HEADS * ceil(GROUP / ROWS), parts, sequences): heads first, whose keys are neighbours.
#import page
#import page_table
#import page_strides
#import page_place
#import attend_row
#import query
#import append
#import attend_core
#import attend_tile
#import attend_walk
#import key
#import store
#import part

override GROUP: u32;
override KV_HEADS: u32;
override WINDOW: i32 = 0;
override Q_STRIDE: u32;
override SPLIT: i32;

struct Part {
    begins: i32,  // slots begins .. ends - 1
    ends: i32,
    number: u32,
    there: bool,
}

fn sees(row: u32, key: vec4<i32>) -> vec4<bool> {
    return (key >= vec4<i32>(first_key[row])) & (key < vec4<i32>(end_key[row]));
}

// What `row_of` needs; no control flow, as a private variable counts as different in each lane.
var<private> head0: u32;      // query head of row 0
var<private> group_end: u32;  // after the last head of the group
var<private> q_row: u32;
var<private> out_row: u32;
var<private> seen: vec2<i32>;

fn row_of(row: u32) -> Row {
    let head = min(head0 + row, group_end - 1u);
    let record = select(NO_RECORD, out_row * KV_HEADS * GROUP + head, head0 + row < group_end);
    return Row(query_of(row, head), record, seen.x, seen.y, 0);
}

@compute @workgroup_size(LANES)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let sequence = group.z;
    let parts = (GROUP + ROWS - 1u) / ROWS;
    let kv_head = group.x / parts;
    let keys = keys_of(sequence, grid.z);
    let first = select(0, max(keys.length - WINDOW, 0), WINDOW > 0);
    let low = slot_of_key(keys, first);
    let part = part_of(keys, low, i32(group.y));
    if (!part.there) {
        return;
    }
    head0 = kv_head * GROUP + group.x % parts * ROWS;
    group_end = (kv_head + 1u) * GROUP;
    q_row = sequence;
    out_row = part.number * grid.z + sequence;
    seen = vec2<i32>(first, keys.length);
    let count = rows_of(grid.x);
    append_token(keys, kv_head, keys.length > 0 && part.ends == keys.slots, lane, count);
    begin(lane, count);
    if (keys.length > 0) {
        let last = (keys.start + part.ends - 1) / TILE;
        for (var tile = (keys.start + part.begins) / TILE; tile <= last; tile++) {
            attend_tile(keys, kv_head, tile * TILE - keys.start, part.begins, part.ends, lane, count);
        }
    }
    finish(lane, count);
    end_part(part.number, grid.z, lane, count);
}
