// Where a token is in `pages`: `at` = (page, slot in the page); in elements, or u32 words for scales.
override PAGE_TOKENS: u32 = 16;
override K_PAGE: u32;
override K_BASE: u32;
override K_HEAD: u32;
override K_TOKEN: u32;
override V_PAGE: u32;
override V_BASE: u32;
override V_HEAD: u32;
override V_TOKEN: u32;
override KS_PAGE: u32 = 0;
override KS_BASE: u32 = 0;
override KS_HEAD: u32 = 0;
override KS_TOKEN: u32 = 0;
override VS_PAGE: u32 = 0;
override VS_BASE: u32 = 0;
override VS_HEAD: u32 = 0;
override VS_TOKEN: u32 = 0;

fn at_position(position: u32) -> vec2<u32> {
    return vec2<u32>(position / PAGE_TOKENS, position % PAGE_TOKENS);
}

fn key_element(at: vec2<u32>, head: u32) -> u32 {
    return at.x * K_PAGE + K_BASE + head * K_HEAD + at.y * K_TOKEN;
}

fn value_element(at: vec2<u32>, head: u32) -> u32 {
    return at.x * V_PAGE + V_BASE + head * V_HEAD + at.y * V_TOKEN;
}

fn key_scale_word(at: vec2<u32>, head: u32) -> u32 {
    return at.x * KS_PAGE + KS_BASE + head * KS_HEAD + at.y * KS_TOKEN;
}

fn value_scale_word(at: vec2<u32>, head: u32) -> u32 {
    return at.x * VS_PAGE + VS_BASE + head * VS_HEAD + at.y * VS_TOKEN;
}
