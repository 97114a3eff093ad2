package mongostore

import (
	"go.mongodb.org/mongo-driver/v2/bson"
)

// Aggregation expressions that more than one query uses. Each looks at a type
// before it relies on it: a damaged document must not fail a query about others.

// lastTraceIndex is the index of the newest trace step; null where it has none.
var lastTraceIndex = bson.D{{Key: "$let", Value: bson.D{
	{Key: "vars", Value: bson.D{{Key: "last", Value: bson.D{{Key: "$arrayElemAt", Value: bson.A{
		bson.D{{Key: "$cond", Value: bson.A{bson.D{{Key: "$isArray", Value: "$trace"}}, "$trace.index", bson.A{}}}}, -1,
	}}}}}},
	{Key: "in", Value: bson.D{{Key: "$cond", Value: bson.A{isNumber("$$last"), "$$last", nil}}}},
}}}

// isMember is whether the array at path holds the text.
func isMember(s, path string) bson.D {
	return bson.D{{Key: "$in", Value: bson.A{bson.D{{Key: "$literal", Value: s}}, orEmptyArray(path)}}}
}

// isNumber is whether expr is a number that counts something: of any width, from 0,
// no NaN and not infinite.
func isNumber(expr string) bson.D {
	return bson.D{{Key: "$and", Value: bson.A{
		bson.D{{Key: "$isNumber", Value: expr}},
		bson.D{{Key: "$gte", Value: bson.A{expr, 0}}},
		bson.D{{Key: "$lt", Value: bson.A{expr, int64(1) << 53}}},
	}}}
}

// isTime is whether expr is a number of seconds within the years 1 to 9999.
func isTime(expr string) bson.D {
	return bson.D{{Key: "$and", Value: bson.A{
		bson.D{{Key: "$in", Value: bson.A{bson.D{{Key: "$type", Value: expr}}, bson.A{"double", "int", "long"}}}},
		bson.D{{Key: "$gt", Value: bson.A{expr, float64(firstSecond)}}},
		bson.D{{Key: "$lt", Value: bson.A{expr, float64(lastSecond)}}},
	}}}
}
