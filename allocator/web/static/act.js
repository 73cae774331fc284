// Changes to a group, each asked for twice: the token is kept in this page's memory and nowhere else.
import { element } from "./charts.js";
export const openActions = (group) => {};
