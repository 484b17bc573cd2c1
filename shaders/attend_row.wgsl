// What both cores, attend_core and quad_core, need of rows.

// What a core's `begin` asks for; `query`: where it starts, in vec4; `record`: the number to store it at.
struct Row {
    query: u32,
    record: u32,
    first: i32,  // sees keys first .. end - 1
    end: i32,
    mine: i32,   // see attend_mask_tree
}

// ROWS, as no grid is that wide: a loop of a length that the compiler knows would be unrolled, for seconds.
fn rows_of(grid: u32) -> u32 {
    return ROWS + (grid >> 16u);
}
