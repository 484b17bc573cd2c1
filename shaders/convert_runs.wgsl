// Runs of elements from one page dtype to another: pages[to ..] = src[start ..] as values, for each
// (start, to, count, scale) of runs[...][4] in elements of their own dtype, all multiples of 4.
//   scale: the u32 word of an int8 row's scale, in the buffer that is int8; such a run is one row.
// One lane = 4 elements, grid: (ceil(longest run / 4 / LANES), runs); to int8: one lane = one run, grid:
// ceil(runs / LANES) workgroups.
@group(0) @binding(0) var<storage, read> src: array<u32>;
@group(0) @binding(1) var<storage, read_write> pages: array<u32>;
@group(0) @binding(2) var<storage, read> runs: array<u32>;
#import encode
#import store
override FROM_PER_WORD: u32;  // elements in a word of `src`: 1 is f32, 2 f16, 4 int8
override LANES: u32 = 32;

// unpack2x16float may flush subnormals; f16 to f32 is exact here.
fn widened(half: u32) -> f32 {
    let a = half & 0x7fffu;
    let normal = bitcast<f32>((a << 13u) + select(0x38000000u, 0x70000000u, a >= 0x7c00u));
    let tiny = f32(a) * 5.9604644775390625e-8;
    let size = select(normal, tiny, a < 0x400u);
    return bitcast<f32>(bitcast<u32>(size) | ((half & 0x8000u) << 16u));
}

// Shifts that keep the sign; not every browser has unpack4xI8.
fn signed_bytes(word: u32) -> vec4<f32> {
    return vec4<f32>((vec4<i32>(bitcast<i32>(word)) << vec4<u32>(24u, 16u, 8u, 0u)) >> vec4<u32>(24u));
}

fn from4(element: u32, scale: u32) -> vec4<f32> {
    let word = element / FROM_PER_WORD;
    if (FROM_PER_WORD == 4u) {
        return signed_bytes(src[word]) * bitcast<f32>(src[scale]);
    }
    if (FROM_PER_WORD == 2u) {
        let low = vec2<u32>(src[word], src[word + 1u]) & vec2<u32>(0xffffu);
        let high = vec2<u32>(src[word], src[word + 1u]) >> vec2<u32>(16u);
        return vec4<f32>(widened(low.x), widened(high.x), widened(low.y), widened(high.y));
    }
    return bitcast<vec4<f32>>(vec4<u32>(src[word], src[word + 1u], src[word + 2u], src[word + 3u]));
}

@compute @workgroup_size(LANES)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let run = select(id.y, id.x, SCALED);
    if (run >= arrayLength(&runs) / 4u) {
        return;
    }
    let start = runs[4u * run];
    let to = runs[4u * run + 1u];
    let count = runs[4u * run + 2u];
    let scale = runs[4u * run + 3u];
    let first = select(4u * id.x, 0u, SCALED);
    let end = select(min(first + 4u, count), count, SCALED);
    if ((start + count) / FROM_PER_WORD > arrayLength(&src) || (to + count) / PER_WORD > arrayLength(&pages)) {
        return;
    }
    var absmax = 0.0;
    if (SCALED) {
        for (var d = 0u; d < count; d += 4u) {
            let x = abs(from4(start + d, scale));
            absmax = max(absmax, max(max(x.x, x.y), max(x.z, x.w)));
        }
        pages[scale] = scale_word(absmax);
    }
    let factor = row_scale(absmax);
    for (var d = first; d < end; d += 4u) {
        store4(to + d, from4(start + d, scale), factor);
    }
}
