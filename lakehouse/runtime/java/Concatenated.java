package lakehouse.values;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;

/** Parts a text of JSON objects that stand one after another, with blanks and line breaks between them or without. */
final class Concatenated {
  private Concatenated() {}

  /** The bytes of each object. What begins as none, or does not end, goes to the end of its line; a blank text is one of them. */
  static List<byte[]> objects(byte[] text) {
    int[] ends = ends(text);
    List<byte[]> objects = new ArrayList<>();
    int at = afterBlanks(text, 0);
    while (at < text.length) {
      int end = ends[at] > 0 ? ends[at] : endOfLine(text, at);
      objects.add(Arrays.copyOfRange(text, at, end));
      at = afterBlanks(text, end);
    }
    return objects.isEmpty() ? List.of(text) : objects;
  }

  /** The place after each object, where it begins. One pass finds all, for of a hostile text each line may begin one. */
  private static int[] ends(byte[] text) {
    int[] ends = new int[text.length];
    int[] begins = new int[text.length];
    int depth = 0;
    boolean quoted = false;
    for (int at = 0; at < text.length; at++) {
      byte sign = text[at];
      if (sign == '\n') {
        if (quoted) depth = 0; // no string has a line break, so no object goes on after it
        quoted = false;
      } else if (quoted && sign == '\\' && at + 1 < text.length && text[at + 1] != '\n') {
        at++;
      } else if (sign == '"') {
        quoted = !quoted;
      } else if (!quoted && sign == '{') {
        begins[depth++] = at;
      } else if (!quoted && sign == '}' && depth > 0) {
        ends[begins[--depth]] = at + 1;
      }
    }
    return ends;
  }

  private static int afterBlanks(byte[] text, int from) {
    int at = from;
    while (at < text.length && (text[at] == ' ' || text[at] == '\t' || text[at] == '\r' || text[at] == '\n')) at++;
    return at;
  }

  private static int endOfLine(byte[] text, int from) {
    int at = from;
    while (at < text.length && text[at] != '\n') at++;
    return at;
  }
}
