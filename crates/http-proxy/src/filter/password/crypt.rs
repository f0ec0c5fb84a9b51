//! The two older `crypt` schemes: many rounds of a hash over password, salt and the last result.

use aws_lc_rs::digest::{Algorithm, Context};

use super::md5::md5;

const LETTERS: &[u8; 64] = b"./0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

/// Bytes by threes, most significant first, in the order in which each scheme writes them.
const MD5_ORDER: [[usize; 3]; 5] = [[0, 6, 12], [1, 7, 13], [2, 8, 14], [3, 9, 15], [4, 10, 5]];
const SHA256_ORDER: [[usize; 3]; 10] = [
    [0, 10, 20],
    [21, 1, 11],
    [12, 22, 2],
    [3, 13, 23],
    [24, 4, 14],
    [15, 25, 5],
    [6, 16, 26],
    [27, 7, 17],
    [18, 28, 8],
    [9, 19, 29],
];

fn write_letters(out: &mut String, mut bits: u32, count: usize) {
    for _ in 0..count {
        out.push(char::from(LETTERS[(bits & 63) as usize]));
        bits >>= 6;
    }
}

fn write_ordered(out: &mut String, hash: &[u8], order: &[[usize; 3]]) {
    for place in order {
        let [high, middle, low] = place.map(|at| u32::from(hash[at]));
        write_letters(out, high << 16 | middle << 8 | low, 4);
    }
}

/// MD5 crypt, with Apache's magic or the original one; only the hash, without salt.
pub(super) fn md5_crypt(password: &[u8], magic: &str, salt: &[u8]) -> String {
    let alternate = md5(&[password, salt, password].concat());
    let mut first = [password, magic.as_bytes(), salt].concat();
    first.extend(alternate.iter().cycle().take(password.len()));
    let mut bits = password.len();
    while bits != 0 {
        // What the original did by mistake everybody does since: a zero, or the first letter.
        first.push(if bits & 1 == 1 { 0 } else { password[0] });
        bits >>= 1;
    }
    let mut last = md5(&first);
    let mut input = Vec::with_capacity(2 * password.len() + 32);
    for round in 0..1000 {
        input.clear();
        input.extend_from_slice(if round & 1 == 1 { password } else { &last });
        if round % 3 != 0 {
            input.extend_from_slice(salt);
        }
        if round % 7 != 0 {
            input.extend_from_slice(password);
        }
        input.extend_from_slice(if round & 1 == 1 { &last } else { password });
        last = md5(&input);
    }
    let mut out = String::with_capacity(22);
    write_ordered(&mut out, &last, &MD5_ORDER);
    write_letters(&mut out, u32::from(last[11]), 2);
    out
}

fn hash_of<'a>(
    algorithm: &'static Algorithm,
    parts: impl IntoIterator<Item = &'a [u8]>,
) -> Vec<u8> {
    let mut context = Context::new(algorithm);
    for part in parts {
        context.update(part);
    }
    context.finish().as_ref().to_vec()
}

fn repeat_to(bytes: &[u8], length: usize) -> Vec<u8> {
    bytes.iter().copied().cycle().take(length).collect()
}

/// SHA-256 or SHA-512 crypt; only the hash, without salt.
pub(super) fn sha_crypt(
    algorithm: &'static Algorithm,
    password: &[u8],
    salt: &[u8],
    rounds: u32,
) -> String {
    let alternate = hash_of(algorithm, [password, salt, password]);
    let mut first = [password, salt, &repeat_to(&alternate, password.len())].concat();
    let mut bits = password.len();
    while bits != 0 {
        first.extend_from_slice(if bits & 1 == 1 { &alternate } else { password });
        bits >>= 1;
    }
    let mut last = hash_of(algorithm, [&first[..]]);
    let of_password = hash_of(algorithm, password.iter().map(|_| password));
    let of_password = repeat_to(&of_password, password.len());
    let of_salt = hash_of(algorithm, (0..16 + usize::from(last[0])).map(|_| salt));
    let of_salt = repeat_to(&of_salt, salt.len());
    for round in 0..rounds {
        let odd = round & 1 == 1;
        let mut context = Context::new(algorithm);
        context.update(if odd { &of_password } else { &last });
        if round % 3 != 0 {
            context.update(&of_salt);
        }
        if round % 7 != 0 {
            context.update(&of_password);
        }
        context.update(if odd { &last } else { &of_password });
        last = context.finish().as_ref().to_vec();
    }
    sha_letters(&last)
}

fn sha_letters(hash: &[u8]) -> String {
    let mut out = String::with_capacity(86);
    if hash.len() == 32 {
        write_ordered(&mut out, hash, &SHA256_ORDER);
        write_letters(&mut out, u32::from(hash[31]) << 8 | u32::from(hash[30]), 3);
        return out;
    }
    // Three rows of 21, each triple turned by one place against the last.
    for column in 0..21 {
        let mut place = [column, column + 21, column + 42];
        place.rotate_left(column % 3);
        write_ordered(&mut out, hash, &[place]);
    }
    write_letters(&mut out, u32::from(hash[63]), 2);
    out
}
