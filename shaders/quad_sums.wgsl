// How sums leave their registers, four dims of a row at a time; see quad_core.

// The row's sums move up by 4 dims.
fn next_half(row: u32) {
    if (row < ROWS) {
        let at = row * 8u;
        acc[at] = mat2x4<f32>(acc[at][1], acc[at + 1u][0]);
        acc[at + 1u] = mat2x4<f32>(acc[at + 1u][1], acc[at + 2u][0]);
        acc[at + 2u] = mat2x4<f32>(acc[at + 2u][1], acc[at + 3u][0]);
        acc[at + 3u] = mat2x4<f32>(acc[at + 3u][1], acc[at + 4u][0]);
        acc[at + 4u] = mat2x4<f32>(acc[at + 4u][1], acc[at + 5u][0]);
        acc[at + 5u] = mat2x4<f32>(acc[at + 5u][1], acc[at + 6u][0]);
        acc[at + 6u] = mat2x4<f32>(acc[at + 6u][1], acc[at + 7u][0]);
        acc[at + 7u] = mat2x4<f32>(acc[at + 7u][1], vec4<f32>());
    }
}

fn next_halves(row: u32) {
    next_half(row);
    next_half(row + 1u);
    next_half(row + 2u);
    next_half(row + 3u);
}

struct Sums {
    half: vec4<f32>,
    state: vec2<f32>,  // m and this lane's share of the sum of p
}

fn pick(sums: Sums, wanted: u32, row: u32) -> Sums {
    if (row >= ROWS) {
        return sums;
    }
    let here = wanted == row;
    let state = select(sums.state, vec2<f32>(m[row], total[row]), here);
    return Sums(select(sums.half, acc[row * 8u][0], here), state);
}

fn pick_of(sums: Sums, wanted: u32, row: u32) -> Sums {
    let two = pick(pick(sums, wanted, row), wanted, row + 1u);
    return pick(pick(two, wanted, row + 2u), wanted, row + 3u);
}

// A row's next 4 sums.
fn sums_of(row: u32) -> Sums {
    let none = Sums(acc[0][0], vec2<f32>(m[0], total[0]));
    return pick_of(pick_of(pick_of(pick_of(none, row, 0u), row, 4u), row, 8u), row, 12u);
}
