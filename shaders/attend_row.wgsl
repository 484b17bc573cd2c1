// What a core's `begin` asks for; `query`: where it starts, in vec4; `record`: the number to store it at.
struct Row {
    query: u32,
    record: u32,
    first: i32,  // sees keys first .. end - 1
    end: i32,
    mine: i32,   // see attend_mask_tree
}
