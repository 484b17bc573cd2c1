// Pages in a texture, 16 bytes a texel, in rows of 1024.
@group(0) @binding(1) var pages: texture_storage_2d<rgba32uint, read>;

fn texel(i: u32) -> vec4<u32> {
    return textureLoad(pages, vec2<u32>(i % 1024u, i / 1024u));
}

// At least as many as there are: the last row may be longer than they need.
fn pages_of(texels: u32) -> u32 {
    let size = textureDimensions(pages);
    return size.x * size.y / texels;
}
