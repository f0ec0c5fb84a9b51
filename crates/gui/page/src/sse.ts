// Server-sent events, taken apart. Pieces may end anywhere.

export interface Message { event: string; data: string }

/** A line longer than this is no message of ours. */
const LINE_CHARS_MAX = 4 << 20;

export class Lines {
  private rest = '';
  private event = '';
  private data: string[] = [];

  /** The messages that are complete with this piece. */
  take(piece: string): Message[] {
    const text = this.rest + piece;
    // The other half of this line's end may come with the next piece.
    const whole = text.endsWith('\r') ? text.slice(0, -1) : text;
    const lines = whole.split(/\r\n|\n|\r/);
    this.rest = (lines.pop() ?? '') + text.slice(whole.length);
    if (this.rest.length > LINE_CHARS_MAX) throw new Error('a message of the stream is too long');
    const messages: Message[] = [];
    for (const line of lines) {
      if (line === '') {
        if (this.data.length) messages.push({ event: this.event || 'message', data: this.data.join('\n') });
        this.event = '';
        this.data = [];
        continue;
      }
      const colon = line.indexOf(':');
      const field = colon < 0 ? line : line.slice(0, colon);
      const value = colon < 0 ? '' : line.slice(colon + 1).replace(/^ /, '');
      if (field === 'event') this.event = value;
      else if (field === 'data') this.data.push(value);
    }
    return messages;
  }
}
