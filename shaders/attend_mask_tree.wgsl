// The last `nodes` keys are a token tree: row r sees node j, itself or above, if first_j <= first_r < end_j.
//   tree int32: indptr[sequences + 1], then (first, end), pre-order numbers, of each node of all sequences.
@group(0) @binding(7) var<storage, read> tree: array<i32>;
var<private> nodes: i32;
var<private> tree_key: i32;       // the key of node 0
var<private> tree_at: i32;        // where node 0's pair is in `tree`

fn begin_mask(sequence: u32, sequences: u32, length: i32) {
    nodes = tree[sequence + 1u] - tree[sequence];
    tree_key = length - nodes;
    tree_at = i32(sequences) + 1 + 2 * tree[sequence];
}

// The third is first_r.
fn row_sees(r: u32, rows: u32, range: vec2<i32>) -> vec3<i32> {
    if (nodes <= 0) {
        return vec3<i32>(range, 0);
    }
    return vec3<i32>(range.x, tree_key + nodes, tree[tree_at + 2 * max(nodes - i32(rows - r), 0)]);
}

// Any node may be seen by any row.
fn all_end(end: i32, length: i32) -> i32 {
    return length;
}

// One branch for four keys: this is inlined often, and each costs a software adapter's compiler much.
fn sees(row: u32, key: vec4<i32>) -> vec4<bool> {
    let range = (key >= vec4<i32>(first_key[row])) & (key < vec4<i32>(end_key[row]));
    let node = key - vec4<i32>(tree_key);
    if (all(node < vec4<i32>())) {
        return range;
    }
    let at = vec4<i32>(tree_at) + 2 * max(node, vec4<i32>());
    let first = vec4<i32>(tree[at.x], tree[at.y], tree[at.z], tree[at.w]);
    let end = vec4<i32>(tree[at.x + 1], tree[at.y + 1], tree[at.z + 1], tree[at.w + 1]);
    let r = vec4<i32>(mine[row]);
    return range & ((node < vec4<i32>()) | ((first <= r) & (r < end)));
}
