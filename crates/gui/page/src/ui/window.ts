// Which rows of a long list are in sight, where rows differ in height and only those drawn are measured.

/** What a row is taken for while none was measured. */
const GUESS_PX = 37;
/** So many heights are remembered. */
const KNOWN_MAX = 50_000;
/** Smaller differences are rounding. */
const DIFFERENCE_PX = 0.5;

export interface Window {
  /** The first row to draw, and the one after the last. */
  from: number;
  to: number;
  /** The room of the rows before and after. */
  above: number;
  below: number;
}

export class Heights {
  private readonly known = new Map<string, number>();
  private sum = 0;

  /** A row's height; whether that is another than it was taken for. */
  measured(id: string, height: number): boolean {
    const before = this.known.get(id);
    if (height <= 0 || before === height) return false;
    const taken = before ?? this.typical;
    if (this.known.size >= KNOWN_MAX) {
      this.known.clear();
      this.sum = 0;
      return this.measured(id, height);
    }
    this.known.set(id, height);
    this.sum += height - (before ?? 0);
    return Math.abs(taken - height) >= DIFFERENCE_PX;
  }

  /** Rows that were not measured are as high as the others are on average. */
  private get typical(): number {
    return this.known.size ? this.sum / this.known.size : GUESS_PX;
  }

  /** The rows between two distances from the first row's top. */
  window(ids: string[], top: number, bottom: number): Window {
    const { typical } = this;
    let y = 0;
    let from = 0;
    let above = 0;
    let to = 0;
    let drawn = 0;
    for (const [i, id] of ids.entries()) {
      const height = this.known.get(id) ?? typical;
      if (y + height <= top && i < ids.length - 1) {
        from = i + 1;
        above = y + height;
      } else if (y < bottom || i === from) {
        to = i + 1;
        drawn = y + height;
      }
      y += height;
    }
    return { from, to, above, below: Math.max(0, y - drawn) };
  }
}
