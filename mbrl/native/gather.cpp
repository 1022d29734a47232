// Rows of a dataset's columns, as a buffer holds them: scaled and put side by side.
#include <cstring>

#include "products.h"

// How a number of a column becomes one of a row.
enum Kind : Int { Copy, Scaled, Action, Discount, Whole, Flag };

struct Field {
  const char* data;
  Int stride;  // bytes from row to row
  Int width;   // numbers a row
  Int kind;
  const float *centre, *half;  // of Action, else null
  float factor;                // Scaled: times it; Discount: it, or 0 where the flag is set
};

static Int bytes(const Field& field) {
  return field.width * (field.kind == Whole ? 8 : field.kind == Discount || field.kind == Flag ? 1 : 4);
}

static void ask_for(const Field& field, Int row) {
  const char* from = field.data + row * field.stride;
  for (Int at = 0; at < bytes(field); at += 64) __builtin_prefetch(from + at);
}

template <typename Type, typename Put>
static void each(const Field& field, const Int* index, Int count, float* out, Int width, Put put) {
  for (Int row = 0; row < count; row++, out += width) {
    const Type* from = (const Type*)(field.data + index[row] * field.stride);
    for (Int i = 0; i < field.width; i++) out[i] = put(from[i], i);
  }
}

// The numbers of one field into rows of `width` numbers.
static void place(const Field& field, const Int* index, Int count, float* out, Int width) {
  const float factor = field.factor, *centre = field.centre, *half = field.half;
  switch (field.kind) {
    case Copy: return each<float>(field, index, count, out, width, [](float x, Int) { return x; });
    case Scaled: return each<float>(field, index, count, out, width, [=](float x, Int) { return x * factor; });
    case Discount:
      return each<char>(field, index, count, out, width, [=](char x, Int) { return x ? 0.0f : factor; });
    case Whole: return each<Int>(field, index, count, out, width, [](Int x, Int) { return (float)x; });
    case Flag: return each<char>(field, index, count, out, width, [](char x, Int) { return x ? 1.0f : 0.0f; });
    case Action:
      return each<float>(field, index, count, out, width, [=](float x, Int i) {
        const float scaled = (x - centre[i]) / half[i];
        return scaled < -1.0f ? -1.0f : scaled > 1.0f ? 1.0f : scaled;
      });
  }
}

static const Int block = 16;  // rows at a time; the memory of the next ones is asked for before

// out [count, width of all fields]: the rows at `index` [count].
extern "C" void gather_rows(const Field* fields, Int number, const Int* index, Int count, float* out) {
  Int width = 0;
  for (Int f = 0; f < number; f++) width += fields[f].width;
  for (Int begin = 0; begin < count; begin += block) {
    const Int rows = count - begin < block ? count - begin : block;
    float* to = out + begin * width;
    for (Int f = 0; f < number; f++) {
      for (Int row = begin + block; row < begin + 2 * block && row < count; row++) ask_for(fields[f], index[row]);
      place(fields[f], index + begin, rows, to, width);
      to += fields[f].width;
    }
  }
}
