package slim

// ReadAtMost sets how much is read of a list, in bytes.
func (r *Reader) ReadAtMost(bytes int) { r.maxRead = bytes }

// KeepAtMost sets how much is kept of a list, in bytes.
func (r *Reader) KeepAtMost(bytes int) { r.maxKept = bytes }

// Page is how many objects a page has.
const Page = page

// CostOf is what it costs to decode JSON, in bytes of memory, about.
var CostOf = costOf
