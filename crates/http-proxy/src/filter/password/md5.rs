//! MD5 (RFC 1321), for the hashes of old password files and for nothing else: it is broken, and the
//! binary's cryptography rightly leaves it out.

const SHIFTS: [[u32; 4]; 4] = [[7, 12, 17, 22], [5, 9, 14, 20], [4, 11, 16, 23], [6, 10, 15, 21]];

/// The hash of `message`.
pub(super) fn md5(message: &[u8]) -> [u8; 16] {
    let mut state = [0x6745_2301_u32, 0xefcd_ab89, 0x98ba_dcfe, 0x1032_5476];
    let mut padded = message.to_vec();
    padded.push(0x80);
    while padded.len() % 64 != 56 {
        padded.push(0);
    }
    padded.extend((message.len() as u64).wrapping_mul(8).to_le_bytes());
    let constants = constants();
    for block in padded.as_chunks::<64>().0 {
        take_block(&mut state, block, constants);
    }
    let mut out = [0; 16];
    for (to, word) in out.as_chunks_mut::<4>().0.iter_mut().zip(state) {
        *to = word.to_le_bytes();
    }
    out
}

fn take_block(state: &mut [u32; 4], block: &[u8; 64], constants: &[u32; 64]) {
    let mut words = [0; 16];
    for (word, bytes) in words.iter_mut().zip(block.as_chunks::<4>().0) {
        *word = u32::from_le_bytes(*bytes);
    }
    let [mut a, mut b, mut c, mut d] = *state;
    for step in 0..64 {
        let (mixed, at) = match step / 16 {
            0 => ((b & c) | (!b & d), step),
            1 => ((d & b) | (!d & c), (5 * step + 1) % 16),
            2 => (b ^ c ^ d, (3 * step + 5) % 16),
            _ => (c ^ (b | !d), (7 * step) % 16),
        };
        let sum = a.wrapping_add(mixed).wrapping_add(constants[step]).wrapping_add(words[at]);
        let turned = sum.rotate_left(SHIFTS[step / 16][step % 4]);
        (a, d, c, b) = (d, c, b, b.wrapping_add(turned));
    }
    for (word, add) in state.iter_mut().zip([a, b, c, d]) {
        *word = word.wrapping_add(add);
    }
}

/// The sines that the standard takes its constants from.
fn constants() -> &'static [u32; 64] {
    static CONSTANTS: std::sync::OnceLock<[u32; 64]> = std::sync::OnceLock::new();
    CONSTANTS.get_or_init(|| {
        std::array::from_fn(|step| {
            let sine = f64::from(step as u32 + 1).sin().abs();
            // Below 2³², by the sine.
            #[allow(clippy::cast_sign_loss)]
            let scaled = (sine * 4_294_967_296.0) as u32;
            scaled
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_standards_examples_come_out() {
        let hex = |text: &str| {
            let digest = md5(text.as_bytes()).into_iter();
            digest.map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().concat()
        };
        assert_eq!(hex(""), "d41d8cd98f00b204e9800998ecf8427e");
        assert_eq!(hex("abc"), "900150983cd24fb0d6963f7d28e17f72");
        let digits = "1234567890".repeat(8);
        assert_eq!(hex(&digits), "57edf4a22be3c955ac49da2e2107b67a");
    }
}
