// Package flags has the types of command line flags that more than one program uses.
package flags

import (
	"flag"
	"fmt"
	"strings"
)

// List adds a flag for a comma-separated list of names. What *to holds is the default; an empty text is an empty list.
// White space around a name is dropped, and an empty name is an error. check, if it is not nil, returns why a name is not
// acceptable.
func List[S ~[]string](set *flag.FlagSet, to *S, name, usage string, check func(string) error) {
	set.Var(&list[S]{to, check}, name, usage)
}

// list is the [flag.Value]. Package flag makes a zero one to find out whether the default is empty.
type list[S ~[]string] struct {
	to    *S
	check func(string) error
}

func (l *list[S]) String() string {
	if l.to == nil {
		return ""
	}
	return strings.Join(*l.to, ",")
}

func (l *list[S]) Set(text string) error {
	names := S{}
	for name := range strings.SplitSeq(text, ",") {
		name = strings.TrimSpace(name)
		if text == "" {
			break
		}
		if l.check != nil {
			if err := l.check(name); err != nil {
				return err
			}
		}
		if name == "" {
			return fmt.Errorf("an empty name in %q", text)
		}
		names = append(names, name)
	}
	*l.to = names
	return nil
}
