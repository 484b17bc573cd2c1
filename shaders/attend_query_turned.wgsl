// Queries as attend_append rotated them.
var<workgroup> turned_query: array<vec4<f32>, 256>;  // [row][HEAD_DIM / 4]

fn query4(at: u32) -> vec4<f32> {
    return turned_query[at];
}
